"""What libraries do with the state that they save, asked of them and recorded."""
