"""Orders of edges that kernels read: sorted edges, transposes, schedules and blocks."""
