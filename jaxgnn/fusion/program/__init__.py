"""Programs as plain data: equations, known values of their variables, bodies of loops."""
