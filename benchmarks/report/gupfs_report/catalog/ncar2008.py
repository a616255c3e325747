"""To come."""
EXPERIMENTS = []
