"""What any router before OpenAI engines should do, tried with emulated engines behind it."""
