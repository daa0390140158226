"""Small data sets that come with the library."""
