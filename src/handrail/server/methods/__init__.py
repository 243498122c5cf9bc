"""The methods of the wire, one module per family."""
