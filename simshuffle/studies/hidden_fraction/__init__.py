"""How much of an exchange an epoch can hide, and what ends it."""
