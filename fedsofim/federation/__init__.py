"""Server and clients on Flower: messages, replies, and the owner's side."""
