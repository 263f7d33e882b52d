"""What this project relies on Enroot for, as tests: green against real Enroot and against the stand-in alike."""
