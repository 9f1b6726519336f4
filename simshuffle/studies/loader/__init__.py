"""What loaders do: what is fetched of their orders, and how well these mix."""
