"""Tasks: conversion of rows to prompts and targets, or to texts and labels."""
