"""What must hold for a hit: from the requirements of a trace to the extension's guard tree, to Python expressions and to words."""
