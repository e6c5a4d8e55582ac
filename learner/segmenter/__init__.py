"""The small network that finds lungs and heart in frontal radiographs: its films, training, figures and export."""
