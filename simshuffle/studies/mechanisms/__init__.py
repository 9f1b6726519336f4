"""Take an exchange apart switch by switch: what each of its mechanisms costs."""
