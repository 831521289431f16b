"""What was compiled, what ran and what fell back; fault modes."""
