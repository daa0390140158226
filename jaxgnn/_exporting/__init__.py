"""Export of functions of graphs to files, and loading of these files in other processes."""

from jaxgnn._exporting.export import export as export
from jaxgnn._exporting.load import ExportedFunction as ExportedFunction
from jaxgnn._exporting.load import load_exported as load_exported
