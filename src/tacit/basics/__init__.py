"""What every room may use: durable files, plain data, words of messages."""
