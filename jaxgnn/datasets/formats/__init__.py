"""Parsers of file formats that trust nothing: pickles, npz, torch files, tables."""
