"""Gang schedulers and queues: the objects they want for a gang, and what they answer. Pure; one file per scheduler."""
