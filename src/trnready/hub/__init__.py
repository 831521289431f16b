"""Where models come from: folders, the Hub, and packages; what can be known of one before it is run."""
