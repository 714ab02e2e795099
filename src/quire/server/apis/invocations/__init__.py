"""Amazon SageMaker's route and sessions."""
