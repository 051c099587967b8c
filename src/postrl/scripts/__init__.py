"""What scripts and callbacks that were written for TRL and transformers find here."""
