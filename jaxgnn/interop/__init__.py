"""Other libraries' names on the kernels of this one; a module needs the package of its name."""
