"""The studies: one package for each verb that simulates, trains or measures."""
