"""The local supervisor behind `paceline up`: state folder, lock, child processes, readiness, diagnosis."""
