"""The models by what they take: speech, documents, pictures, text."""
