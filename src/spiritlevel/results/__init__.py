"""What every result shares: text for the terminal, JSON, CSV and files."""
