"""The rollout worker: which prompts are asked when, what is scored, dropped and handed to the learner."""
