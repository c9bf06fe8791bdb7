"""`Dataset`, what users see: it holds `Rows`, and imports everything below it; nothing imports it back."""
