"""Code generators of others: those that ship with us, and how others are found."""
