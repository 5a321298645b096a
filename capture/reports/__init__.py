"""The report: what was captured, as data, text, JSON and a page."""
