"""Link sharing: several jobs on one link send in turns."""
