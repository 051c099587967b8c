"""vLLM servers as a run uses them: the client, what is asked and answered, which are given up, which fit."""
