"""The solver: from a program and a deployment to pins, their legal values and a selector."""
