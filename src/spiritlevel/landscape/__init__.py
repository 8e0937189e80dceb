"""Pictures of the loss, honest about their coordinates."""
