"""What keeps the accepted rate while a knowledge base grows."""
