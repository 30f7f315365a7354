"""The embedded data: captioned images of several objects, made by a seeded program. Nothing is downloaded."""
