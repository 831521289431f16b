"""Right or wrong: compares what a device computed with what the CPU computes, and says why."""
