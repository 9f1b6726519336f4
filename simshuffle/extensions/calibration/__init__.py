"""From measurements to parameters, and from predictions to their errors."""
