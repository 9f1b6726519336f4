"""What loaders do with the state that they save, when training goes on with other ranks."""
