"""What users are told: the report as data, and as text, JSON and a page."""
