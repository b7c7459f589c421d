"""From sequence files to training rows: reading, cleaning, splitting, sharding and sample order."""
