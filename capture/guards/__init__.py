"""What must hold for a hit: from what a trace requires to the extension's guard tree, to Python and to words."""
