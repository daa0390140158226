"""Classification and regression of whole graphs, such as molecules."""
