"""What a training leaves behind whose training set was filtered: tables, report, figures."""
