"""What ails a run, and what would make it better, from the statistics of its steps; usable without the rest."""
