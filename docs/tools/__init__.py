"""What makes the documentation: hooks of the site, and the recorded terminal session."""
