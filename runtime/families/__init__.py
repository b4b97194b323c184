"""What the runtime knows of each model family: where its modules are and how they split over a tensor-parallel group."""
