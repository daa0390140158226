"""HTML that notebooks show for graphs and data sets: tables and small drawings, in numpy alone."""
