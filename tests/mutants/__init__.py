"""Named errors, planted one at a time in a copy of the project; each must fail a test."""
