"""HTTP requests that the server makes for its clients."""
