"""The HTML of the library: pages that need no network, and what notebooks show."""
