"""The job as others see it: reads the state and changes nothing."""
