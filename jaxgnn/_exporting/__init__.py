"""Functions of graphs as files: exported in one process, loaded and called in another."""

from jaxgnn._exporting.export import export as export
from jaxgnn._exporting.load import ExportedFunction as ExportedFunction
from jaxgnn._exporting.load import load_exported as load_exported
